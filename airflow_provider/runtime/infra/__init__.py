"""Where clusters come from: one module per infra behind one interface."""
