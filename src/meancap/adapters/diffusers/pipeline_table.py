"""The table of diffusers pipelines: how each lays out its predictions, or why it cannot be guided.

Taken from the source of diffusers 0.42.1 and run by the tests, each in float32 and bfloat16. An entry is
verified at the first step of a run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .layouts import Layout

_TOGETHER = Layout("together", "uc")
_APART = Layout("apart", "cu")
_UNET = replace(_TOGETHER, denoisers=("unet",))
_TRUE = replace(_APART, scale="true_cfg_scale")
_WAN = replace(_APART, denoisers=("transformer", "transformer_2"))
_PAG = Layout("together", "ucp", note="the perturbed prediction is kept in the nominal result")
_FIRST = Layout("together", "c*")  # whatever the pipeline makes of it
_SKIPPED = "skipped layers are kept in the nominal result"
_RESCALE = "guidance_rescale is kept"
_VARIANCE = "the learned variance is dropped"
_TOKENS = "rescales each token"
_DYNAMIC = "use_dynamic_cfg is kept; needs CogVideoXDDIMScheduler"
_KOLORS = "diffusers needs sentencepiece for it"
_DEPRECATED = "diffusers has deprecated it, and it was not looked into"
_PARTS = "a long video is made in parts, and the record is of the last"

# Pipelines that share a layout; "Pipeline" is added to each name.
_GROUPS: tuple[tuple[Layout, str], ...] = (
    (replace(_TOGETHER, extra=1, weak=True, note=_SKIPPED), "StableDiffusion3"),
    (
        _TOGETHER,
        "StableDiffusion3Img2Img StableDiffusion3Inpaint StableDiffusion3ControlNet "
        "StableDiffusion3ControlNetInpainting AuraFlow ErnieImage BriaFibo Allegro CogView3Plus StableAudio "
        "StableAudio3",
    ),
    (replace(_TOGETHER, note=_DYNAMIC),
     "CogVideoX CogVideoXImageToVideo CogVideoXVideoToVideo CogVideoXFunControl"),
    (replace(_TOGETHER, note=f"{_DYNAMIC}; diffusers needs opencv for it"), "ConsisID"),
    (replace(_TOGETHER, note="inverted sigmas are read from the scheduler"), "Mochi"),
    (replace(_TOGETHER, note="the pipeline itself runs one sample at a time"), "PRX"),
    (replace(_TOGETHER, note="with clip_value pass verify=False"), "Bria"),
    (replace(_TOGETHER, note=_RESCALE), "LTX"),
    (replace(_TOGETHER, sign=-1), "HiDreamImage"),
    (replace(_TOGETHER, keep="first"), "Sana SanaControlNet SanaVideo BriaFiboEdit"),
    (replace(_TOGETHER, keep="first", note=_RESCALE),
     "EasyAnimate EasyAnimateInpaint HunyuanDiT HunyuanDiTControlNet"),
    (replace(_TOGETHER, keep="first", note=f"{_RESCALE}; 0.42.1 passes its encode_prompt an unknown "
             "argument, so that it was run with a stand-in"), "EasyAnimateControl"),
    (replace(_TOGETHER, keep="first", note=_VARIANCE), "PixArtAlpha PixArtSigma Latte"),
    (replace(_TOGETHER, streams=2, extra=2, space="mean",
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
    (replace(_UNET, keep="first", note="text to image; for editing pass this layout with order *c"),
     "DreamLite"),
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
        _APART,
        "Chroma ChromaImg2Img ChromaInpaint CogView4 CogView4Control SkyReelsV2 SkyReelsV2ImageToVideo "
        "OvisImage GlmImage ChronoEdit BriaFibo2 LongCatAudioDiT "
        "Kandinsky5T2I Kandinsky5T2V Kandinsky5I2I",
    ),
    (replace(_APART, keep="last", note="the frames after the given one are guided"), "Kandinsky5I2V"),
    (replace(_APART, streams=2, clean="visual_token_type_ids",
             note="video and audio, each with its own record; a call with a given frame is refused"),
     "Kandinsky6TI2VA"),
    (_WAN, "Wan WanVideoToVideo WanVACE LucyEdit"),
    (replace(_WAN, note=_PARTS), "WanAnimate"),
    (replace(_WAN, note="Wan 2.2 TI2V-5B shows a clean first frame, and is refused at the first step"),
     "WanImageToVideo"),
    (replace(_APART, keep="first"), "Flux2Klein Flux2KleinInpaint LongCatImageEdit"),
    (replace(_APART, rows="row", note=_TOKENS), "LongCatImage"),
    (replace(_APART, sign=-1, rows="row", note=_TOKENS), "NucleusMoEImage"),
    (replace(_APART, sign=-1, rows="row", note="rescales each row of the latent"), "Lumina2"),
    (replace(_APART, offset=1), "Krea2"),
    (replace(_APART, offset=1, note="given frames are refused at the first step"),
     "Cosmos2_5_PredictBase"),
    (replace(_APART, offset=1, note="one chunk of frames; a second begins with given frames and is refused"),
     "Cosmos2_5_Transfer"),
    (replace(_APART, scale="guider", extra=4, note="its own guider makes the nominal result"),
     "HunyuanImage HunyuanImageRefiner HunyuanVideo15 HunyuanVideo15ImageToVideo MotifVideo "
     "MotifVideoImage2Video"),
    (replace(_APART, sign=-1, keep="last", denoisers=("transformer", "unconditional_transformer"),
             note="u is the prediction of a second network"), "Ideogram4"),
    (_FIRST, "OmniGen"),
    (replace(_FIRST, denoisers=("unet",)), "StableDiffusionInstructPix2Pix StableDiffusionXLInstructPix2Pix"),
    (replace(_FIRST, extra=1, note="projected guidance of its own, and the blend of a cover"), "AceStep"),
    (replace(_FIRST, sign=-1, keep="first", note="guides three of its four channels"), "Lumina"),
    (replace(_FIRST, order="*c", denoisers=("unet",), scale="max_guidance_scale",
             note="guides every frame by a scale of its own"), "StableVideoDiffusion"),
)  # fmt: skip

LAYOUTS: dict[str, Layout] = {
    f"{name}Pipeline": layout for layout, names in _GROUPS for name in names.split()
}

# "Pipeline" is added to each name, unless it stands in it already.
_REASONS: tuple[tuple[str, str], ...] = (
    (
        "it is guidance-distilled and makes one prediction per step, so there is nothing to guide",
        "FluxControl FluxControlImg2Img FluxControlInpaint FluxControlNetImg2Img FluxControlNetInpaint "
        "FluxFill Flux2 Flux2KleinKV VisualCloze VisualClozeGeneration SanaSprint SanaSprintImg2Img "
        "LatentConsistencyModel LatentConsistencyModelImg2Img DreamLiteMobile Kandinsky6SR "
        "StableAudio3AudioToAudio StableAudio3Inpaint LTX2DFR LTX2DFRTemporalRefine",
    ),
    (
        "it makes one prediction per step, so there is nothing to guide",
        "ConsistencyModel DDIM DDPM FluxPriorRedux LDMSuperResolution LTXLatentUpsample LTX2LatentUpsample "
        "LTX2VideoDiffusionDecode MarigoldDepth MarigoldIntrinsics MarigoldNormals RFD4Proteina",
    ),
    (
        "it steps a part of its frames or tokens, each at a time of its own, which no rule here reads",
        "LTXImageToVideo LTXCondition LTXI2VLongMultiPrompt SanaImageToVideo SanaWM "
        "SkyReelsV2DiffusionForcing SkyReelsV2DiffusionForcingImageToVideo "
        "SkyReelsV2DiffusionForcingVideoToVideo Helios HeliosPyramid LTX2ImageToVideo LTX2Condition "
        "LTX2InContext LTX2HDR",
    ),
    (
        "it combines its predictions as posterior means and hands the scheduler something else",
        "CosmosTextToWorld CosmosVideoToWorld Cosmos2TextToImage Cosmos2VideoToWorld PRXPixel "
        "StableDiffusionLatentUpscale",
    ),
    (
        "it steps its clean reference pictures together with the new one, so that they would count into "
        "every length",
        "JoyImageEdit JoyImageEditPlus",
    ),
    (
        "it predicts where a flow leads and no velocity, from which no posterior mean follows",
        "AnyFlow AnyFlowFAR",
    ),
    (
        "it hands the scheduler its learned variance together with the prediction",
        "IF IFImg2Img IFImg2ImgSuperResolution IFInpainting IFInpaintingSuperResolution IFSuperResolution "
        "Kandinsky KandinskyImg2Img KandinskyInpaint KandinskyV22 KandinskyV22Controlnet "
        "KandinskyV22ControlnetImg2Img KandinskyV22Img2Img KandinskyV22Inpaint",
    ),
    (
        "it samples an embedding and no picture",
        "KandinskyPrior KandinskyV22Prior KandinskyV22PriorEmb2Emb ShapE ShapEImg2Img",
    ),
    (
        "it only calls other pipelines; guide the one that makes the picture",
        "KandinskyCombined KandinskyImg2ImgCombined KandinskyInpaintCombined KandinskyV22Combined "
        "KandinskyV22Img2ImgCombined KandinskyV22InpaintCombined StableCascadeCombined",
    ),
    (
        "its scheduler states no posterior mean here",
        "StableCascadeDecoder StableCascadePrior",
    ),
    (
        "it packs video, sound and actions into one sequence and steps each by a scheduler of its own",
        "Cosmos3Omni",
    ),
    ("it steps both halves of a doubled batch", "DiT"),
    ("it edits by several directions with masks of their own", "LEditsPPPipelineStableDiffusion "
     "LEditsPPPipelineStableDiffusionXL"),
    ("it writes text", "LLaDA2 DiffusionGemma"),
    (_DEPRECATED, "AudioDiffusion BlipDiffusionControlNet SpectrogramDiffusion"),
)  # fmt: skip

UNSUPPORTED: dict[str, str] = {
    (name if "Pipeline" in name else f"{name}Pipeline"): reason
    for reason, names in _REASONS
    for name in names.split()
}

# Whole groups, by the module that defines them.
ELSEWHERE = {
    "diffusers.pipelines.deprecated.": _DEPRECATED,
    "onnx": "its denoiser runs in ONNX, outside torch",
}
_MODULAR = "give it a guider: pipe.update_components(guider=PosteriorMeanCappedGuidance(...))"


def layout_of(pipe: Any) -> Layout:
    """The layout of a pipeline in the table; raises an error with the next step for every other pipeline."""
    names = [base.__name__ for base in type(pipe).__mro__]
    for name in names:
        if name in UNSUPPORTED:
            raise NotImplementedError(f"{names[0]} cannot be guided: {UNSUPPORTED[name]}")
        if name in LAYOUTS:
            return LAYOUTS[name]
    for part, reason in ELSEWHERE.items():
        if part in type(pipe).__module__:
            raise NotImplementedError(f"{names[0]} cannot be guided: {reason}")
    if "ModularPipeline" in names:
        raise NotImplementedError(f"{names[0]} is modular; {_MODULAR}")
    if not hasattr(pipe, "scheduler"):
        raise TypeError(f"a diffusers pipeline is needed; got {names[0]}")
    raise NotImplementedError(
        f"{names[0]} is not in the table that `meancap pipelines` prints; if it makes two predictions per "
        "step, pass a layout: guided(pipe, rule, layout=Layout('together', 'uc')) or Layout('apart', 'cu')"
    )
