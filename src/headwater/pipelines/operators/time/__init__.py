"""Event time: timestamps of rows, watermarks, lateness."""
