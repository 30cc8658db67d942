"""StatsD over UDP: metrics of applications, aggregated by interval into records of a topic.

    datagrams ─▶ receiving.py ─▶ lines.py (parse) ─▶ series.py (aggregate) ─▶ one record per series
                  one thread                          sketch.py (percentiles)  and interval

UDP loses datagrams without a word: counts are at best approximate. What was noticed is counted.
"""
