-- shop.db, the source. `headwater init --sql` has run this; to start again:
--   rm shop.db && sqlite3 shop.db < schema.sql

CREATE TABLE customers (
    id INTEGER PRIMARY KEY,
    country TEXT NOT NULL
);

CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    product TEXT NOT NULL,
    quantity INTEGER NOT NULL,
    price_cents INTEGER NOT NULL
);

INSERT INTO customers (country) VALUES ('DE'), ('FR'), ('AT');

INSERT INTO orders (customer_id, product, quantity, price_cents) VALUES
    (1, 'lamp', 1, 4900),
    (2, 'chair', 4, 8900),
    (3, 'desk', 1, 24900),
    (1, 'shelf', 2, 5900);
