"""Security: authentication, authorization and the audit log."""
