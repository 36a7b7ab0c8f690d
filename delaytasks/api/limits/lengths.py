"""Read the length that a request declares. Imports nothing: middleware uses it before Django has loaded its apps."""

MAX_DIGITS = 18  # a longer number is beyond every limit, and Python refuses to convert more than 4,300 digits


def declared_length(content_length: str) -> int:
    """Return the number in a Content-Length header, at most 10 ** 18; 0 if the header is missing or no number."""
    if not (content_length.isascii() and content_length.isdecimal()):
        return 0
    digits = content_length.lstrip("0") or "0"
    return int(digits) if len(digits) <= MAX_DIGITS else 10**MAX_DIGITS
