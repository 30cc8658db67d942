-- What each country has ordered. A table is called as its topic: capture.schema.table.
SELECT c.country, count(*) AS orders, sum(o.quantity * o.price_cents) AS total_cents
FROM shop.main.orders o JOIN shop.main.customers c ON o.customer_id = c.id
GROUP BY c.country
