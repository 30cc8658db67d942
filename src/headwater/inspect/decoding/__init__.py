"""Keys, values and headers decoded into what people and programs read."""
