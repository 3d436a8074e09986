"""Control: the pure state machine of a managed task, and the controller that performs its effects."""
