"""Row pattern matching over streams: MATCH_RECOGNIZE of SQL:2016 as an operator."""
