-- The shop's own database. Headwater only reads it, and needs no changes in these tables.
-- The server needs wal_level = logical (ALTER SYSTEM SET wal_level = 'logical', then restart it).

CREATE TABLE customers (
    id        bigint PRIMARY KEY,
    name      text NOT NULL,
    email     text NOT NULL,
    country   text NOT NULL,
    joined_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE products (
    id          bigint PRIMARY KEY,
    name        text NOT NULL,
    description text NOT NULL,
    price       numeric(10, 2) NOT NULL CHECK (price > 0)
);

CREATE TABLE orders (
    id          bigint PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    status      text NOT NULL DEFAULT 'placed'
                CHECK (status IN ('placed', 'paid', 'shipped', 'delivered', 'cancelled')),
    total       numeric(12, 2) NOT NULL,
    ordered_at  timestamptz NOT NULL DEFAULT now()  -- tills that were offline send their orders later
);
CREATE INDEX ON orders (customer_id);

CREATE TABLE items (
    order_id   bigint NOT NULL REFERENCES orders ON DELETE CASCADE,
    line       integer NOT NULL,
    product_id bigint NOT NULL REFERENCES products,
    quantity   integer NOT NULL CHECK (quantity > 0),
    price      numeric(10, 2) NOT NULL,  -- of one, when it was ordered
    PRIMARY KEY (order_id, line)
);
CREATE INDEX ON items (product_id);

-- Capture needs only a primary key. With FULL the log also has the row before a change, so that
-- a change event in the topic shows what has changed.
ALTER TABLE customers REPLICA IDENTITY FULL;
ALTER TABLE products REPLICA IDENTITY FULL;
ALTER TABLE orders REPLICA IDENTITY FULL;
