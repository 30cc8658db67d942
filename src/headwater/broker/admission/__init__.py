"""What a request must pass: checks of its batches, quotas, and overload policies of topics."""
