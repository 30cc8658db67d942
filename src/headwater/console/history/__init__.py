"""Figures over time, for plots: sampled from the start, a week of them, over restarts.

samples     the figures of one reading of broker and project, by name of a series
store       the file: two resolutions, bounded in series and in time
ranges      the ranges of time that a plot can show; chosen_range is that of a request
plots       what pages draw: plots of some series, and the small lines of lists
small_line  those lines as SVG
process_usage    CPU and memory of the processes under `up`
"""
