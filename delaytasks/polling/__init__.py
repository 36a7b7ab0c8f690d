"""Polling: call a handler after growing delays until it succeeds or a deadline passes. Also numbered delay levels."""
