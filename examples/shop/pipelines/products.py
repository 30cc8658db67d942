"""The shop's search box: a full-text index of the products, with today's prices.

from headwater.sinks.tantivy.store import search
search("search/products", "kettle AND price:[10 TO 50]")
"""

import headwater as hw


@hw.pipeline
def products(flow: hw.Flow) -> None:
    products = flow.changes("shop.public.products")
    flow.write(
        products,
        to="search",
        table="products",
        key="id",
        options={"text": "name, description", "language": "english"},
    )
