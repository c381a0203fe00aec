"""AMD's name of each number in the engine's sources."""

import rust_abi

DEVICE = "hipDeviceAttribute"
HIP = {
    "ATTRIBUTE_INTEGRATED": f"{DEVICE}Integrated",
    "ATTRIBUTE_MAX_GRID_DIM_X": f"{DEVICE}MaxGridDimX",
    "ATTRIBUTE_MAX_GRID_DIM_Y": f"{DEVICE}MaxGridDimY",
    "ATTRIBUTE_MAX_GRID_DIM_Z": f"{DEVICE}MaxGridDimZ",
    "ATTRIBUTE_MAX_THREADS_PER_BLOCK": f"{DEVICE}MaxThreadsPerBlock",
    "ATTRIBUTE_MULTIPROCESSOR_COUNT": f"{DEVICE}MultiprocessorCount",
    "ATTRIBUTE_WARP_SIZE": f"{DEVICE}WarpSize",
    "COPY_HOST_TO_DEVICE": "hipMemcpyHostToDevice",
    "COPY_DEVICE_TO_HOST": "hipMemcpyDeviceToHost",
    "COPY_DEVICE_TO_DEVICE": "hipMemcpyDeviceToDevice",
    "PROPERTIES_BYTES": "sizeof(hipDeviceProp_tR0600)",
    "PROPERTIES_MEMORY": "offsetof(hipDeviceProp_tR0600, totalGlobalMem)",
    "PROPERTIES_WARP_SIZE": "offsetof(hipDeviceProp_tR0600, warpSize)",
    "PROPERTIES_MULTIPROCESSOR_COUNT": "offsetof(hipDeviceProp_tR0600, multiProcessorCount)",
    "PROPERTIES_GCN_ARCH_NAME": "offsetof(hipDeviceProp_tR0600, gcnArchName)",
    "PROPERTIES_GCN_ARCH_NAME_BYTES": "sizeof(hipDeviceProp_tR0600::gcnArchName)",
}
COMMON = {
    "HOST_MAPPED": "hipHostMallocMapped",
    "STREAM_NON_BLOCKING": "hipStreamNonBlocking",
    "EVENT_DISABLE_TIMING": "hipEventDisableTiming",
    "CAPTURE_THREAD_LOCAL": "hipStreamCaptureModeThreadLocal",
    "FUNCTION_MAX_THREADS_PER_BLOCK": "HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK",
}
BLASLT = {
    "DATA_F32": "HIP_R_32F",
    "DATA_F16": "HIP_R_16F",
    "DATA_BF16": "HIP_R_16BF",
    "DATA_E4M3": "HIP_R_8F_E4M3",
    "DATA_E4M3_FNUZ": "HIP_R_8F_E4M3_FNUZ",
    "EPILOGUE_BIAS": "HIPBLASLT_EPILOGUE_BIAS",
    "SCALE_OUTER_VECTOR": "HIPBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F",
    "PREFERENCE_MAX_WORKSPACE_BYTES": "HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES",
}
DIALECT = {
    "result_bytes": "sizeof(hipblasLtMatmulHeuristicResult_t)",
    "compute_f32": "HIPBLAS_COMPUTE_32F",
    "attribute_transpose_a": "HIPBLASLT_MATMUL_DESC_TRANSA",
    "attribute_epilogue": "HIPBLASLT_MATMUL_DESC_EPILOGUE",
    "attribute_bias_pointer": "HIPBLASLT_MATMUL_DESC_BIAS_POINTER",
    "attribute_scale_pointers[0]": "HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER",
    "attribute_scale_pointers[1]": "HIPBLASLT_MATMUL_DESC_B_SCALE_POINTER",
    "attribute_scale_modes[0]": "HIPBLASLT_MATMUL_DESC_A_SCALE_MODE",
    "attribute_scale_modes[1]": "HIPBLASLT_MATMUL_DESC_B_SCALE_MODE",
    "operation_transpose": "HIPBLAS_OP_T",
}
# Codes that the engine acts on. HIP has no name for CUDA's others.
ERRORS = {
    2: "hipErrorOutOfMemory",
    4: "hipErrorDeinitialized",
    100: "hipErrorNoDevice",
    214: "hipErrorECCNotCorrectable",
    700: "hipErrorIllegalAddress",
    702: "hipErrorLaunchTimeOut",
    709: "hipErrorContextIsDestroyed",
    710: "hipErrorAssert",
    719: "hipErrorLaunchFailure",
    999: "hipErrorUnknown",
}
OF_CUDA = {46, *range(714, 719)}
# Facts that the engine relies on without a number of its own.
RELIED_ON = {
    "success of HIP": ("0", "hipSuccess"),
    "success of hipRTC": ("0", "HIPRTC_SUCCESS"),
    "success of hipBLASLt": ("0", "HIPBLAS_STATUS_SUCCESS"),
    "bytes of a program's handle": ("8", "sizeof(hiprtcProgram)"),
    "place of the algorithm in its result": ("0", "offsetof(hipblasLtMatmulHeuristicResult_t, algo)"),
    "bytes of a scale mode": ("4", "sizeof(hipblasLtMatmulMatrixScale_t)"),
    "bytes of an epilogue": ("4", "sizeof(hipblasLtEpilogue_t)"),
    "bytes of an operation": ("4", "sizeof(hipblasOperation_t)"),
}
PARTS = {
    "hip": (rust_abi.constants(rust_abi.HIP), HIP),
    "common": (rust_abi.constants(rust_abi.COMMON), COMMON),
    "blaslt": (rust_abi.constants(rust_abi.BLASLT), BLASLT),
    "dialect": (rust_abi.dialect(), DIALECT),
}
LIBRARIES = {
    "HIP": rust_abi.table(rust_abi.HIP, "Hip"),
    "hipRTC": rust_abi.table(rust_abi.RTC, "Hiprtc"),
    "hipBLASLt": rust_abi.hipblaslt(),
}
FUNCTIONS = {function.name: function for functions in LIBRARIES.values() for function in functions}
# Each fact is asked of AMD's headers: an expression, and the number that the engine has.
NUMBERS = {
    **{f"{part}.{name}": (c, str(ours[name])) for part, (ours, names) in PARTS.items() for name, c in names.items()},
    **{f"error {code}": (name, str(code)) for code, name in ERRORS.items()},
    **{name: (c, ours) for name, (ours, c) in RELIED_ON.items()},
}
