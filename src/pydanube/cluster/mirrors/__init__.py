"""Journal mirrors over the network: owners stream to them, new owners recover from them."""
