"""Confluent's schema registry REST API, on the gateway.

routes      the addresses, and what each answers
exchange    requests and answers in Confluent's form; errors with its codes
serving     the registry behind them, and who may use it
"""
