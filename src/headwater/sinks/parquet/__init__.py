"""Parquet files in a directory as derived stores, for rows that are only added."""
