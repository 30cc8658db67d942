"""The gateway: in and out of the log over HTTP, for clients that do not speak Kafka.

    server      one process: binds the address, runs the app until it is asked to stop
    app         the routes, and what a failed request looks like
    ├── guard       Host, pages of other sites, who asks
    ├── authentication, tokens    users of the broker by password, machines by token
    ├── callers     who asks, and what they may do
    └── access      a caller's way to the broker
    routes      those of writing (POST /topics/T), reading (GET /topics/T), sockets (the same,
                upgraded), tables (GET /tables/T), live (GET /live/T), calls (POST /rpc/NAME) and
                events (/events/STREAM)
    webhooks, alerts    what is sent to others, and taken from them; each with a thread of its own
    ownership   which of several gateways does that
    answers     errors as JSON with their status
    parameters  parameters of a query

The gateway works from the Kafka protocol alone, so it serves Apache Kafka as it serves our own
broker, and holds no state that matters: it can be ended and started at any time.
"""
