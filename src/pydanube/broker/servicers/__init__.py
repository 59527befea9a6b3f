"""One module per service: translate, delegate, translate back."""
