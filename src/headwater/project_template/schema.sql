-- shop.db, the source. `headwater init` has run this; to start again:
--   rm shop.db && sqlite3 shop.db < schema.sql

CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    product TEXT NOT NULL,
    quantity INTEGER NOT NULL,
    price_cents INTEGER NOT NULL
);

INSERT INTO orders (product, quantity, price_cents) VALUES
    ('lamp', 1, 4900),
    ('chair', 4, 8900),
    ('desk', 1, 24900);
