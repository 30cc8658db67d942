"""Event time: timestamps of rows, watermarks, punctuations, lateness."""
