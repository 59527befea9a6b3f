"""etcd's API, as far as the metadata store needs it, over our own channels."""
