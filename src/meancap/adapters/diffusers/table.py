"""The table of diffusers pipelines: how each lays out its predictions, and which cannot be guided and why.

Read off the source of diffusers 0.42.1; those in RUN are also run by the tests here, in float32 and bfloat16.
Read or run, an entry is verified at the first step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .layouts import Layout

TOGETHER = Layout("together", "uc")
APART = Layout("apart", "cu")
_TRUE = replace(APART, scale="true_cfg_scale")
_FLUX = replace(_TRUE, note="needs a negative prompt")
_UNET = replace(TOGETHER, denoisers=("unet",))
_OWN = replace(APART, scale="guider", extra=4, note="its own guider makes the nominal result")

_QWEN = replace(_TRUE, rows="row", keep="first", note="rescales each token")
_WAN = replace(APART, denoisers=("transformer", "transformer_2"))
_Z = Layout("together", "cu", sign=-1, offset=1, note="cfg_normalization is kept")
_PAG = Layout("together", "ucp", note="its third, perturbed prediction is kept in the nominal result")

LAYOUTS: dict[str, Layout] = {
    "StableDiffusion3Pipeline": replace(
        TOGETHER, extra=1, note="skipped layers are kept in the nominal result"
    ),
    "StableDiffusion3Img2ImgPipeline": TOGETHER,
    "StableDiffusion3InpaintPipeline": TOGETHER,
    "StableDiffusion3ControlNetPipeline": TOGETHER,
    "StableDiffusion3ControlNetInpaintingPipeline": TOGETHER,
    "StableDiffusion3PAGPipeline": _PAG,
    "AuraFlowPipeline": TOGETHER,
    "LTXPipeline": replace(TOGETHER, note="guidance_rescale is kept"),
    "SanaPipeline": replace(TOGETHER, keep="first"),
    "SanaControlNetPipeline": replace(TOGETHER, keep="first"),
    "SanaVideoPipeline": replace(TOGETHER, keep="first"),
    "PRXPipeline": replace(TOGETHER, note="the pipeline itself runs one sample at a time"),
    "BriaPipeline": replace(TOGETHER, note="with clip_value pass verify=False"),
    "ErnieImagePipeline": TOGETHER,
    "EasyAnimatePipeline": replace(TOGETHER, keep="first", note="guidance_rescale is kept"),
    "MochiPipeline": replace(TOGETHER, note="inverted sigmas are read from the scheduler"),
    "HiDreamImagePipeline": replace(TOGETHER, sign=-1),
    "ZImagePipeline": _Z,
    "ZImageImg2ImgPipeline": _Z,
    "ZImageInpaintPipeline": _Z,
    "ZImageControlNetPipeline": _Z,
    "FluxPipeline": _FLUX,
    "FluxImg2ImgPipeline": _FLUX,
    "FluxInpaintPipeline": _FLUX,
    "FluxControlNetPipeline": _FLUX,
    "FluxKontextPipeline": replace(_FLUX, keep="first"),
    "FluxKontextInpaintPipeline": replace(_FLUX, keep="first"),
    "ChromaPipeline": APART,
    "ChromaImg2ImgPipeline": APART,
    "ChromaInpaintPipeline": APART,
    "QwenImagePipeline": _QWEN,
    "QwenImageImg2ImgPipeline": _QWEN,
    "QwenImageInpaintPipeline": _QWEN,
    "QwenImageEditPipeline": _QWEN,
    "QwenImageEditPlusPipeline": _QWEN,
    "QwenImageEditInpaintPipeline": _QWEN,
    "QwenImageControlNetPipeline": _QWEN,
    "QwenImageControlNetInpaintPipeline": _QWEN,
    "QwenImageLayeredPipeline": _QWEN,
    "CogView4Pipeline": APART,
    "CogView4ControlPipeline": APART,
    "WanPipeline": _WAN,
    "WanImageToVideoPipeline": _WAN,
    "WanVideoToVideoPipeline": _WAN,
    "WanVACEPipeline": _WAN,
    "WanAnimatePipeline": _WAN,
    "LucyEditPipeline": _WAN,
    "SkyReelsV2Pipeline": APART,
    "SkyReelsV2ImageToVideoPipeline": APART,
    "HunyuanVideoPipeline": _TRUE,
    "HunyuanSkyreelsImageToVideoPipeline": _TRUE,
    "Flux2KleinPipeline": replace(APART, keep="first"),
    "Flux2KleinInpaintPipeline": replace(APART, keep="first"),
    "Lumina2Pipeline": replace(APART, sign=-1, rows="row", note="rescales each row of the latent"),
    "OvisImagePipeline": APART,
    "LongCatImagePipeline": replace(APART, rows="row", note="rescales each token"),
    "GlmImagePipeline": APART,
    "Krea2Pipeline": replace(APART, offset=1),
    "Kandinsky5T2IPipeline": APART,
    "Kandinsky5T2VPipeline": APART,
    "HunyuanImagePipeline": _OWN,
    "HunyuanImageRefinerPipeline": _OWN,
    "HunyuanVideo15Pipeline": _OWN,
    "HunyuanVideo15ImageToVideoPipeline": _OWN,
    "MotifVideoPipeline": _OWN,
    "StableDiffusionPipeline": _UNET,
    "StableDiffusionImg2ImgPipeline": _UNET,
    "StableDiffusionInpaintPipeline": _UNET,
    "StableDiffusionControlNetPipeline": _UNET,
    "StableDiffusionXLPipeline": _UNET,
    "StableDiffusionXLImg2ImgPipeline": _UNET,
    "StableDiffusionXLInpaintPipeline": _UNET,
    "StableDiffusionXLControlNetPipeline": _UNET,
    "PixArtAlphaPipeline": replace(TOGETHER, keep="first", note="the learned variance is dropped"),
    "PixArtSigmaPipeline": replace(TOGETHER, keep="first", note="the learned variance is dropped"),
}

# fmt: off
RUN = frozenset((
    "StableDiffusion3Pipeline", "AuraFlowPipeline", "LTXPipeline", "SanaPipeline", "SanaVideoPipeline",
    "PRXPipeline", "BriaPipeline", "MochiPipeline", "HiDreamImagePipeline", "ZImagePipeline",
    "FluxPipeline", "ChromaPipeline", "QwenImagePipeline", "CogView4Pipeline", "WanPipeline",
    "SkyReelsV2Pipeline", "HunyuanVideoPipeline", "Flux2KleinPipeline", "Lumina2Pipeline",
    "OvisImagePipeline", "Krea2Pipeline", "HunyuanImagePipeline", "HunyuanVideo15Pipeline",
    "StableDiffusionPipeline", "StableDiffusionXLPipeline", "PixArtAlphaPipeline", "PixArtSigmaPipeline",
    "StableDiffusion3Img2ImgPipeline", "StableDiffusion3InpaintPipeline", "StableDiffusion3PAGPipeline",
    "FluxImg2ImgPipeline", "FluxInpaintPipeline", "FluxKontextPipeline", "ChromaImg2ImgPipeline",
    "QwenImageImg2ImgPipeline", "WanVideoToVideoPipeline", "ZImageImg2ImgPipeline",
    "StableDiffusionImg2ImgPipeline", "StableDiffusionXLImg2ImgPipeline", "ErnieImagePipeline",
    "QwenImageInpaintPipeline", "ZImageInpaintPipeline", "StableDiffusionInpaintPipeline",
    "StableDiffusionXLInpaintPipeline", "StableDiffusion3ControlNetPipeline", "SanaControlNetPipeline",
    "CogView4ControlPipeline", "WanImageToVideoPipeline", "WanVACEPipeline", "Kandinsky5T2IPipeline",
    "Flux2KleinInpaintPipeline",
))
# fmt: on

_ONE = "it is guidance-distilled and makes one prediction per step, so there is nothing to guide"
_FRAMES = "it steps a part of its frames or tokens, each at a time of its own, which no rule here reads"
_MEANS = "it combines its predictions as posterior means and hands the scheduler something else"
_THREE = "it combines three predictions under two scales, which no single gap describes"

UNSUPPORTED: dict[str, str] = {
    "FluxControlPipeline": _ONE,
    "FluxControlImg2ImgPipeline": _ONE,
    "FluxControlInpaintPipeline": _ONE,
    "FluxControlNetImg2ImgPipeline": _ONE,
    "FluxControlNetInpaintPipeline": _ONE,
    "FluxFillPipeline": _ONE,
    "Flux2Pipeline": _ONE,
    "Flux2KleinKVPipeline": _ONE,
    "VisualClozePipeline": _ONE,
    "VisualClozeGenerationPipeline": _ONE,
    "SanaSprintPipeline": _ONE,
    "SanaSprintImg2ImgPipeline": _ONE,
    "LatentConsistencyModelPipeline": _ONE,
    "LatentConsistencyModelImg2ImgPipeline": _ONE,
    "LTXImageToVideoPipeline": _FRAMES,
    "LTXConditionPipeline": _FRAMES,
    "LTXI2VLongMultiPromptPipeline": _FRAMES,
    "SanaImageToVideoPipeline": _FRAMES,
    "SkyReelsV2DiffusionForcingPipeline": _FRAMES,
    "SkyReelsV2DiffusionForcingImageToVideoPipeline": _FRAMES,
    "SkyReelsV2DiffusionForcingVideoToVideoPipeline": _FRAMES,
    "HeliosPipeline": _FRAMES,
    "HeliosPyramidPipeline": _FRAMES,
    "LTX2Pipeline": _MEANS,
    "LTX2ImageToVideoPipeline": _MEANS,
    "CosmosTextToWorldPipeline": _MEANS,
    "CosmosVideoToWorldPipeline": _MEANS,
    "Cosmos2TextToImagePipeline": _MEANS,
    "Cosmos2VideoToWorldPipeline": _MEANS,
    "PRXPixelPipeline": _MEANS,
    "OmniGenPipeline": _THREE,
    "StableDiffusionInstructPix2PixPipeline": _THREE,
    "StableDiffusionXLInstructPix2PixPipeline": _THREE,
    "LuminaPipeline": "it guides three of its four channels only",
    "AceStepPipeline": "it applies a projected guidance of its own to audio",
    "Ideogram4Pipeline": "its two predictions come from two different models",
}

_MODULAR = "give it a guider: pipe.update_components(guider=PosteriorMeanCappedGuidance(...))"


def layout_of(pipe: Any) -> Layout:
    """The layout of a pipeline in the table; every other pipeline raises and says what to do."""
    names = [base.__name__ for base in type(pipe).__mro__]
    for name in names:
        if name in UNSUPPORTED:
            raise NotImplementedError(f"{names[0]} cannot be guided: {UNSUPPORTED[name]}")
        if name in LAYOUTS:
            return LAYOUTS[name]
    if "ModularPipeline" in names:
        raise NotImplementedError(f"{names[0]} is modular; {_MODULAR}")
    if not hasattr(pipe, "scheduler"):
        raise TypeError(f"a diffusers pipeline is needed; got {names[0]}")
    raise NotImplementedError(
        f"{names[0]} is not in the table that `meancap pipelines` prints; if it makes two predictions per "
        "step, say how they lie: guided(pipe, rule, layout=Layout('together', 'uc')) or Layout('apart', 'cu')"
    )
