{
  description = "The guided step under the posterior-mean cap";

  inputs.kernel-builder.url = "github:huggingface/kernels";

  outputs = { self, kernel-builder }:
    kernel-builder.lib.genKernelFlakeOutputs { inherit self; path = ./.; };
}
