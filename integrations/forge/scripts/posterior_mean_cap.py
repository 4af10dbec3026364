"""Posterior-Mean Cap for Forge (and reForge). NOT RUN: no Forge has executed this script yet; see the README.

Forge finds it in extensions/<folder>/scripts and calls `process_before_every_sampling` before each run (twice
with hires fix), so the hook is new every time, and nothing has to be reset.
"""

import gradio as gr
from modules import scripts

from meancap import Cap, CapDisplacement
from meancap.adapters.comfy.hooks import PostCFG

FORMS = {"ball": Cap, "displacement": CapDisplacement}


class PosteriorMeanCap(scripts.Script):
    sorting_priority = 99  # its place in the page; metadata.ini has the order of the calls

    def __init__(self):
        super().__init__()
        self.hooks = []  # one for each pass over the batch under way

    def title(self):
        return "Posterior-Mean Cap"

    def show(self, is_img2img):
        return scripts.AlwaysVisible

    def ui(self, is_img2img):
        with gr.Accordion(open=False, label=self.title()):
            enabled = gr.Checkbox(label="Enabled", value=False)
            gamma = gr.Slider(label="Gamma", minimum=1.0, maximum=2.0, step=0.01, value=1.1)
            form = gr.Radio(label="Form", choices=list(FORMS), value="ball")
        return enabled, gamma, form

    def process(self, p, *values):
        self.hooks = []  # an interrupted generation may have left some

    def process_before_every_sampling(self, p, enabled, gamma, form, **options):
        if not enabled:
            return
        hook = PostCFG(FORMS[form](gamma))
        self.hooks.append(hook)
        unet = p.sd_model.forge_objects.unet.clone()
        unet.set_model_sampler_post_cfg_function(hook)
        p.sd_model.forge_objects.unet = unet
        p.extra_generation_params["Posterior-mean cap"] = str(hook.rule)

    def postprocess_batch(self, p, *values, **options):
        for number, hook in enumerate(self.hooks, start=1):
            print(f"pass {number}: {hook.run.text()}" if len(self.hooks) > 1 else hook.run.text())
        self.hooks = []
