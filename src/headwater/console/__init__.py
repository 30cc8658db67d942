"""The web console: flow, topics and records, groups, queues, captures, pipelines and stores.

    server      one process: binds the address, runs the app until it is asked to stop
    app         the routes, and what a failed request looks like
    ├── security    content policy, cross-site requests, sessions and sign-in
    ├── rendering   a page, or the same data as JSON
    └── access      a user's way to the broker
        └── cache       answers of the broker, read once for all requests
    pages/      one module per page: routes and the data behind them
    history/    figures over a week, for plots
    templates/, static/    what they look like

The socket, deadlines, names of hosts, logins and server-sent events are those of `web`.

Every page works from the Kafka protocol and from files that other commands write, so it shows
Apache Kafka as it shows our own broker. The console holds no state that matters but the history of
its plots: it can be ended and started at any time. It never runs Spark in its own process.
"""
