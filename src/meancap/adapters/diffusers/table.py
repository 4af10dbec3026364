"""The table of diffusers pipelines: how each lays out its predictions.

Taken from the source of diffusers 0.42.1 and run by the tests here, each in float32 and bfloat16. An entry
is verified at the first step of a run. `refused` has the pipelines that cannot be guided, with the reason.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .layouts import Layout
from .refused import UNSUPPORTED

TOGETHER = Layout("together", "uc")
APART = Layout("apart", "cu")
_UNET = replace(TOGETHER, denoisers=("unet",))
_TRUE = replace(APART, scale="true_cfg_scale")
_WAN = replace(APART, denoisers=("transformer", "transformer_2"))
_PAG = Layout("together", "ucp", note="the perturbed prediction is kept in the nominal result")
_SKIPPED = "skipped layers are kept in the nominal result"
_RESCALE = "guidance_rescale is kept"
_VARIANCE = "the learned variance is dropped"
_TOKENS = "rescales each token"
_DYNAMIC = "use_dynamic_cfg is kept; needs CogVideoXDDIMScheduler"
_KOLORS = "diffusers needs sentencepiece for it"
_PARTS = "a long video is made in parts, and the record is of the last"

# Pipelines that share a layout; "Pipeline" is added to each name.
_GROUPS: tuple[tuple[Layout, str], ...] = (
    (replace(TOGETHER, extra=1, weak=True, note=_SKIPPED), "StableDiffusion3"),
    (
        TOGETHER,
        "StableDiffusion3Img2Img StableDiffusion3Inpaint StableDiffusion3ControlNet "
        "StableDiffusion3ControlNetInpainting AuraFlow ErnieImage BriaFibo Allegro CogView3Plus StableAudio "
        "StableAudio3",
    ),
    (replace(TOGETHER, note=_DYNAMIC),
     "CogVideoX CogVideoXImageToVideo CogVideoXVideoToVideo CogVideoXFunControl"),
    (replace(TOGETHER, note=f"{_DYNAMIC}; diffusers needs opencv for it"), "ConsisID"),
    (replace(TOGETHER, note="inverted sigmas are read from the scheduler"), "Mochi"),
    (replace(TOGETHER, note="the pipeline itself runs one sample at a time"), "PRX"),
    (replace(TOGETHER, note="with clip_value pass verify=False"), "Bria"),
    (replace(TOGETHER, note=_RESCALE), "LTX"),
    (replace(TOGETHER, sign=-1), "HiDreamImage"),
    (replace(TOGETHER, keep="first"), "Sana SanaControlNet SanaVideo BriaFiboEdit"),
    (replace(TOGETHER, keep="first", note=_RESCALE),
     "EasyAnimate EasyAnimateInpaint HunyuanDiT HunyuanDiTControlNet"),
    (replace(TOGETHER, keep="first", note=f"{_RESCALE}; 0.42.1 passes its encode_prompt an unknown "
             "argument, so that it was run with a stand-in"), "EasyAnimateControl"),
    (replace(TOGETHER, keep="first", note=_VARIANCE), "PixArtAlpha PixArtSigma Latte"),
    (replace(TOGETHER, streams=2, extra=2, space="mean",
             note="video and audio, each with its own record; skipped layers, isolated modalities and "
             "rescaling are kept"), "LTX2"),
    (Layout("together", "cu", sign=-1, offset=1, note="cfg_normalization is kept"),
     "ZImage ZImageImg2Img ZImageInpaint ZImageControlNet ZImageControlNetInpaint ZImageOmni"),
    (_PAG, "StableDiffusion3PAG StableDiffusion3PAGImg2Img"),
    (replace(_PAG, keep="first"), "SanaPAG PixArtSigmaPAG HunyuanDiTPAG"),
    (
        replace(_PAG, denoisers=("unet",)),
        "StableDiffusionPAG StableDiffusionPAGImg2Img StableDiffusionPAGInpaint StableDiffusionControlNetPAG "
        "StableDiffusionControlNetPAGInpaint StableDiffusionXLPAG StableDiffusionXLPAGImg2Img "
        "StableDiffusionXLPAGInpaint StableDiffusionXLControlNetPAG StableDiffusionXLControlNetPAGImg2Img "
        "AnimateDiffPAG",
    ),
    (replace(_PAG, denoisers=("unet",), note=f"{_PAG.note}; {_KOLORS}"), "KolorsPAG"),
    (
        _UNET,
        "StableDiffusion StableDiffusionImg2Img StableDiffusionInpaint StableDiffusionControlNet "
        "StableDiffusionControlNetImg2Img StableDiffusionControlNetInpaint StableDiffusionAdapter "
        "StableDiffusionDepth2Img StableDiffusionUpscale StableDiffusionImageVariation "
        "StableUnCLIP StableUnCLIPImg2Img LDMTextToImage "
        "StableDiffusionXL StableDiffusionXLImg2Img StableDiffusionXLInpaint StableDiffusionXLControlNet "
        "StableDiffusionXLControlNetImg2Img StableDiffusionXLControlNetInpaint StableDiffusionXLAdapter "
        "StableDiffusionXLControlNetUnion StableDiffusionXLControlNetUnionImg2Img "
        "StableDiffusionXLControlNetUnionInpaint AudioLDM2 "
        "AnimateDiff AnimateDiffSDXL AnimateDiffControlNet AnimateDiffSparseControlNet "
        "AnimateDiffVideoToVideo AnimateDiffVideoToVideoControlNet",
    ),
    (replace(_UNET, note=_KOLORS), "Kolors KolorsImg2Img"),
    (replace(_UNET, keep="first", note="text to image; editing has two scales and is refused"), "DreamLite"),
    (replace(_UNET, offset=1), "Kandinsky3 Kandinsky3Img2Img"),
    (replace(_TRUE, note="needs a negative prompt"),
     "Flux FluxImg2Img FluxInpaint FluxControlNet"),
    (replace(_TRUE, keep="first", note="needs a negative prompt"), "FluxKontext FluxKontextInpaint"),
    (replace(_TRUE, rows="row", keep="first", note=_TOKENS),
     "QwenImage QwenImageImg2Img QwenImageInpaint QwenImageEdit QwenImageEditPlus QwenImageEditInpaint "
     "QwenImageControlNet QwenImageControlNetInpaint"),
    (replace(_TRUE, rows="row", keep="first", note="cfg_normalize is kept"), "QwenImageLayered"),
    (replace(_TRUE, keep="last", note="needs a negative prompt"), "QwenImage21"),
    (_TRUE, "HunyuanVideo HunyuanSkyreelsImageToVideo"),
    (replace(_TRUE, note=_PARTS), "HunyuanVideoFramepack"),
    (replace(_TRUE, keep="last"), "HunyuanVideoImageToVideo"),
    (
        APART,
        "Chroma ChromaImg2Img ChromaInpaint CogView4 CogView4Control SkyReelsV2 SkyReelsV2ImageToVideo "
        "OvisImage GlmImage ChronoEdit BriaFibo2 LongCatAudioDiT "
        "Kandinsky5T2I Kandinsky5T2V Kandinsky5I2I",
    ),
    (replace(APART, keep="last", note="the frames after the given one are guided"), "Kandinsky5I2V"),
    (replace(APART, streams=2, clean="visual_token_type_ids",
             note="video and audio, each with its own record; a call with a given frame is refused"),
     "Kandinsky6TI2VA"),
    (_WAN, "Wan WanVideoToVideo WanVACE LucyEdit"),
    (replace(_WAN, note=_PARTS), "WanAnimate"),
    (replace(_WAN, note="Wan 2.2 TI2V-5B shows a clean first frame, and is refused at the first step"),
     "WanImageToVideo"),
    (replace(APART, keep="first"), "Flux2Klein Flux2KleinInpaint LongCatImageEdit"),
    (replace(APART, rows="row", note=_TOKENS), "LongCatImage"),
    (replace(APART, sign=-1, rows="row", note=_TOKENS), "NucleusMoEImage"),
    (replace(APART, sign=-1, rows="row", note="rescales each row of the latent"), "Lumina2"),
    (replace(APART, offset=1), "Krea2"),
    (replace(APART, offset=1, note="given frames are refused at the first step"),
     "Cosmos2_5_PredictBase"),
    (replace(APART, offset=1, note="one chunk of frames; a second begins with given frames and is refused"),
     "Cosmos2_5_Transfer"),
    (replace(APART, scale="guider", extra=4, note="its own guider makes the nominal result"),
     "HunyuanImage HunyuanImageRefiner HunyuanVideo15 HunyuanVideo15ImageToVideo MotifVideo "
     "MotifVideoImage2Video"),
)  # fmt: skip

LAYOUTS: dict[str, Layout] = {
    f"{name}Pipeline": layout for layout, names in _GROUPS for name in names.split()
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
