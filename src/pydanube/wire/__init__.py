"""How calls travel: the handler table, the messages, and the engines that carry them."""
