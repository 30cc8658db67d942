"""Every route of the gateway, with a path and a body that would be taken."""

from starlette.routing import Route

from headwater import config
from headwater.gateway.app import create
from headwater.gateway.routes import ROUTES

# What everybody may see who is signed in: it says nothing of topics and tables.
HARMLESS = ("/", "/metrics")
# What others than 403 are answered to who has no right, because it is no right of one topic.
WITHOUT_RIGHTS = {
    ("GET", "/receivers"): 200,  # an empty list
    ("HEAD", "/receivers"): 200,
    ("POST", "/receivers"): 400,
    ("GET", "/receivers/{name}"): 404,
    ("HEAD", "/receivers/{name}"): 404,
    ("DELETE", "/receivers/{name}"): 404,
    ("POST", "/receivers/{name}/{action}"): 404,
    ("GET", "/categories"): 200,  # an empty list
    ("POST", "/webhooks/{name}"): 404,  # signatures count here, and none is set up
}


def every_route():
    app = create(config.load({"gateway.listen": "127.0.0.1:0"}, environ={}, cwd="/"), ROUTES)
    app.state.gateway.close()
    return [
        (method, route.path)
        for route in app.routes
        if isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"HEAD"})  # it is that of GET
    ]


EVERY_ROUTE = every_route()


def path_of(template, name):
    filled = template.replace("{topic}", name).replace("{table}", name)
    filled = filled.replace("{stream:path}", name)
    filled = filled.replace("{subject}", name).replace("{version}", "1")
    filled = filled.replace("{id}", "1").replace("{guid}", "1")
    filled = filled.replace("{key:path}", "1").replace("{name}", name).replace("{action}", "pause")
    assert "{" not in filled, f"say what {template} stands for"
    return filled


EVENTS = [{"type": "Closed"}]
BODIES = {
    "/config": {"compatibility": "NONE"},
    "/mode": {"mode": "READWRITE"},
    "/events/closed": {"events": EVENTS},
    "/events/missing": {"events": EVENTS},
}


def asked(client, method, path, name="closed"):
    """With a body that would be taken."""
    body = {**BODIES, "/events": {"streams": [{"stream": name, "events": EVENTS}]}}.get(
        path
    ) or BODIES.get(f"/{path.split('/')[1]}", {"schema": '"int"'})
    return client.request(method, path, **({"json": body} if method in ("POST", "PUT") else {}))
