"""Search on streams: stored queries that documents flow past, as a percolator does.

fields              values of a document's fields by path, in a form that can be compared
analysis            texts to words and stems, the same for queries and documents
documents           a document as queries see it: analysed once for all of them
conditions          what a query is made of: words, values, ranges, places, AND, OR, NOT
query_parser        the text of a query to conditions, with the place of an error
query_index         stored queries by their rarest required words; the candidates of a document
highlights          fragments of a document around what was found
notice_limits       at most so many matches of a query in an hour
search_operator     the step: documents and changes of queries to matches
api                 hw.search
stored_searches     queries in their topic, for the command line and the console
recent_matches      what a query would have found in the last records of a topic
"""
