"""The diffusers pipelines that cannot be guided here, each with the reason in a sentence."""

from __future__ import annotations

# "Pipeline" is added to each name, unless it stands in it already.
_REASONS: tuple[tuple[str, str], ...] = (
    (
        "it is guidance-distilled and makes one prediction per step, so there is nothing to guide",
        "FluxControl FluxControlImg2Img FluxControlInpaint FluxControlNetImg2Img FluxControlNetInpaint "
        "FluxFill "
        "Flux2 Flux2KleinKV VisualCloze VisualClozeGeneration SanaSprint SanaSprintImg2Img "
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
        "SkyReelsV2DiffusionForcingVideoToVideo Helios HeliosPyramid LTX2ImageToVideo "
        "LTX2Condition "
        "LTX2InContext LTX2HDR",
    ),
    (
        "it combines its predictions as posterior means and hands the scheduler something else",
        "CosmosTextToWorld CosmosVideoToWorld Cosmos2TextToImage Cosmos2VideoToWorld PRXPixel "
        "StableDiffusionLatentUpscale",
    ),
    (
        "it combines three predictions under two scales, which no single gap describes",
        "OmniGen StableDiffusionInstructPix2Pix StableDiffusionXLInstructPix2Pix",
    ),
    (
        "it steps its clean reference pictures together with the new one, so that they would count into "
        "every "
        "length",
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
    ("it guides every frame by a scale of its own", "StableVideoDiffusion"),
    (
        "its denoiser runs in ONNX, outside torch",
        "OnnxStableDiffusion OnnxStableDiffusionImg2Img OnnxStableDiffusionInpaint "
        "OnnxStableDiffusionInpaintPipelineLegacy OnnxStableDiffusionUpscale StableDiffusionOnnx",
    ),
    ("it edits by several directions with masks of their own", "LEditsPPPipelineStableDiffusion "
     "LEditsPPPipelineStableDiffusionXL"),
    ("it writes text", "LLaDA2 DiffusionGemma"),
    ("it guides three of its four channels only", "Lumina"),
    ("it applies a projected guidance of its own to audio", "AceStep"),
    ("its two predictions come from two different models", "Ideogram4"),
    (
        "diffusers has deprecated it, and it was not looked into",
        "AltDiffusion AltDiffusionImg2Img Amused AmusedImg2Img AmusedInpaint AudioDiffusion AudioLDM "
        "BlipDiffusion BlipDiffusionControlNet CycleDiffusion DanceDiffusion I2VGenXL KarrasVe LDM "
        "MusicLDM PIA "
        "PNDM PaintByExample RePaint ScoreSdeVe SemanticStableDiffusion SpectrogramDiffusion "
        "StableDiffusionAttendAndExcite StableDiffusionControlNetXS StableDiffusionDiffEdit "
        "StableDiffusionGLIGEN StableDiffusionGLIGENTextImage StableDiffusionInpaintPipelineLegacy "
        "StableDiffusionLDM3D StableDiffusionModelEditing StableDiffusionPanorama StableDiffusionParadigms "
        "StableDiffusionPipelineSafe StableDiffusionPix2PixZero StableDiffusionSAG "
        "StableDiffusionXLControlNetXS TextToVideoSD TextToVideoZero TextToVideoZeroSDXL UnCLIP "
        "UnCLIPImageVariation UniDiffuser VQDiffusion VersatileDiffusion VersatileDiffusionDualGuided "
        "VersatileDiffusionImageVariation VersatileDiffusionTextToImage VideoToVideoSD WuerstchenCombined "
        "WuerstchenDecoder WuerstchenPrior",
    ),
)  # fmt: skip

UNSUPPORTED: dict[str, str] = {
    (name if "Pipeline" in name else f"{name}Pipeline"): reason
    for reason, names in _REASONS
    for name in names.split()
}
