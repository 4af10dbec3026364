"""ComfyUI and Forge: `hooks` holds the logic and imports neither; `nodes` is what ComfyUI loads."""
