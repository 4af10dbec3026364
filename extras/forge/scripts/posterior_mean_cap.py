"""Posterior-Mean Cap for Forge (and reForge). NOT RUN: no Forge has executed this script yet; see the README.

Forge finds it in extensions/<folder>/scripts and calls `process_before_every_sampling` before each run, so
the hook is new every time, and nothing has to be reset.
"""

import gradio as gr
from modules import scripts

from meancap import Cap, CapDisplacement
from meancap.adapters.comfy.hooks import PostCFG

FORMS = {"ball": Cap, "displacement": CapDisplacement}


class PosteriorMeanCap(scripts.Script):
    sorting_priority = 99  # after the other guidance extensions: the cap goes last

    def __init__(self):
        super().__init__()
        self.hook = None

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

    def process_before_every_sampling(self, p, enabled, gamma, form, **options):
        self.hook = None
        if not enabled:
            return
        self.hook = PostCFG(FORMS[form](gamma))
        unet = p.sd_model.forge_objects.unet.clone()
        unet.set_model_sampler_post_cfg_function(self.hook)
        p.sd_model.forge_objects.unet = unet
        p.extra_generation_params["Posterior-mean cap"] = str(self.hook.rule)

    def postprocess_batch(self, p, *values, **options):
        if self.hook is not None:
            print(f"{self.hook.rule}: {self.hook.run.headline()}")
