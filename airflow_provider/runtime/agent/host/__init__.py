"""What is done on a host over SSH, beside the agent: taking the host, starting the agent, looking, giving it back."""
