"""The clients that put load on a broker."""
