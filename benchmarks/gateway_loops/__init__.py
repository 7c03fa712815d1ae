"""The processes of `arl bench gateway`: the gateway, the model behind it, and the client."""
