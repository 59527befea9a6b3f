"""PyDanube: the Danube messaging platform in Python."""
