"""Redis hashes as derived stores."""
