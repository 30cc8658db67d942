"""Delta tables as derived stores, through delta-rs."""
