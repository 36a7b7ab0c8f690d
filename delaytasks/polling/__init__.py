"""Polling: call a handler after a list of delays until it succeeds or a deadline passes. Also numbered delay levels."""
