"""Polling ladders: ask again and again until an answer comes or a deadline has passed. And delay levels by number."""
