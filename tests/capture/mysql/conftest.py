from mariadb_server import mariadb_server, shop

__all__ = ["mariadb_server", "shop"]
