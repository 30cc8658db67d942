"""OpenSearch indexes as derived stores."""
