"""Rules of a capture's settings: columns that are masked or dropped, conditions on rows."""
