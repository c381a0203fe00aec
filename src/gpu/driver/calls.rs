//! The entry points that both drivers share, in one table: the engine's name, HIP's name and the CUDA driver's name.
//! Their signatures are the same, so the methods of `Driver` are written once.

macro_rules! entry_points {
    ($pick:ident) => {
        $pick! {
            memory_info: hipMemGetInfo, cuMemGetInfo_v2;
            allocate: hipMalloc, cuMemAlloc_v2;
            free: hipFree, cuMemFree_v2;
            allocate_host: hipHostMalloc, cuMemHostAlloc;
            free_host: hipHostFree, cuMemFreeHost;
            host_on_device: hipHostGetDevicePointer, cuMemHostGetDevicePointer_v2;
            create_stream: hipStreamCreateWithFlags, cuStreamCreate;
            destroy_stream: hipStreamDestroy, cuStreamDestroy_v2;
            synchronize_stream: hipStreamSynchronize, cuStreamSynchronize;
            create_event: hipEventCreateWithFlags, cuEventCreate;
            destroy_event: hipEventDestroy, cuEventDestroy_v2;
            record_event: hipEventRecord, cuEventRecord;
            synchronize_event: hipEventSynchronize, cuEventSynchronize;
            query_event: hipEventQuery, cuEventQuery;
            wait_event: hipStreamWaitEvent, cuStreamWaitEvent;
            launch_host: hipLaunchHostFunc, cuLaunchHostFunc;
            load_module: hipModuleLoadData, cuModuleLoadData;
            unload_module: hipModuleUnload, cuModuleUnload;
            function: hipModuleGetFunction, cuModuleGetFunction;
            function_attribute: hipFuncGetAttribute, cuFuncGetAttribute;
            begin_capture: hipStreamBeginCapture, cuStreamBeginCapture_v2;
            end_capture: hipStreamEndCapture, cuStreamEndCapture;
            destroy_graph: hipGraphDestroy, cuGraphDestroy;
            destroy_graph_exec: hipGraphExecDestroy, cuGraphExecDestroy;
            launch_graph: hipGraphLaunch, cuGraphLaunch;
        }
    };
}

/// Defines the methods of `impl Driver` for HIP from the first column.
macro_rules! hip_calls {
    ($($method:ident: $hip:ident, $cuda:ident;)*) => {
        shared_calls! { hip $($method: $hip;)* }
    };
}

/// Defines the same methods for CUDA's driver from the second column.
macro_rules! cuda_calls {
    ($($method:ident: $hip:ident, $cuda:ident;)*) => {
        shared_calls! { cuda $($method: $cuda;)* }
    };
}

/// Calls a function of the library and converts a non-zero status to an error that names it.
macro_rules! call {
    ($library:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let status = ($library.$function)($($argument),*);
        check(&$library, stringify!($function), status)
    }};
}

// SAFETY of every block below: locals that are written through pointers outlive the call, and the caller vouches for
// handles, addresses and sizes (see `Driver`).
macro_rules! shared_calls {
    (
        $library:ident
        memory_info: $memory_info:ident;
        allocate: $allocate:ident;
        free: $free:ident;
        allocate_host: $allocate_host:ident;
        free_host: $free_host:ident;
        host_on_device: $host_on_device:ident;
        create_stream: $create_stream:ident;
        destroy_stream: $destroy_stream:ident;
        synchronize_stream: $synchronize_stream:ident;
        create_event: $create_event:ident;
        destroy_event: $destroy_event:ident;
        record_event: $record_event:ident;
        synchronize_event: $synchronize_event:ident;
        query_event: $query_event:ident;
        wait_event: $wait_event:ident;
        launch_host: $launch_host:ident;
        load_module: $load_module:ident;
        unload_module: $unload_module:ident;
        function: $function:ident;
        function_attribute: $function_attribute:ident;
        begin_capture: $begin_capture:ident;
        end_capture: $end_capture:ident;
        destroy_graph: $destroy_graph:ident;
        destroy_graph_exec: $destroy_graph_exec:ident;
        launch_graph: $launch_graph:ident;
    ) => {
        fn properties(&self) -> &DeviceProperties {
            &self.properties
        }

        fn memory_info(&self) -> Outcome<MemoryInfo> {
            let (mut free, mut total) = (0, 0);
            // SAFETY: see above.
            unsafe { call!(self.$library, $memory_info(&raw mut free, &raw mut total)) }?;
            Ok(MemoryInfo { free: free as u64, total: total as u64 })
        }

        fn allocate(&self, bytes: u64) -> Outcome<u64> {
            let mut address = 0;
            // SAFETY: see above.
            unsafe { call!(self.$library, $allocate(&raw mut address, bytes as usize)) }?;
            Ok(address)
        }

        unsafe fn free(&self, address: u64) -> Outcome<()> {
            // SAFETY: see above.
            unsafe { call!(self.$library, $free(address)) }
        }

        fn allocate_host(&self, bytes: usize) -> Outcome<NonNull<u8>> {
            let mut address = std::ptr::null_mut();
            // SAFETY: see above.
            unsafe { call!(self.$library, $allocate_host(&raw mut address, bytes, sys::HOST_MAPPED)) }?;
            let call = stringify!($allocate_host);
            let nothing = || DriverError { call, code: 0, text: "success, but a null pointer".into() };
            NonNull::new(address.cast()).ok_or_else(nothing)
        }

        unsafe fn free_host(&self, address: NonNull<u8>) -> Outcome<()> {
            // SAFETY: see above.
            unsafe { call!(self.$library, $free_host(address.as_ptr().cast())) }
        }

        unsafe fn host_on_device(&self, address: NonNull<u8>) -> Outcome<u64> {
            let mut there = 0;
            // SAFETY: see above.
            unsafe { call!(self.$library, $host_on_device(&raw mut there, address.as_ptr().cast(), 0)) }?;
            Ok(there)
        }

        fn create_stream(&self) -> Outcome<StreamHandle> {
            let mut stream = StreamHandle::NULL;
            // SAFETY: see above.
            unsafe { call!(self.$library, $create_stream(&raw mut stream, sys::STREAM_NON_BLOCKING)) }?;
            Ok(stream)
        }

        unsafe fn destroy_stream(&self, stream: StreamHandle) -> Outcome<()> {
            // SAFETY: see above.
            unsafe { call!(self.$library, $destroy_stream(stream)) }
        }

        unsafe fn synchronize_stream(&self, stream: StreamHandle) -> Outcome<()> {
            // SAFETY: see above.
            unsafe { call!(self.$library, $synchronize_stream(stream)) }
        }

        fn create_event(&self) -> Outcome<EventHandle> {
            let mut event = EventHandle::NULL;
            // SAFETY: see above.
            unsafe { call!(self.$library, $create_event(&raw mut event, sys::EVENT_DISABLE_TIMING)) }?;
            Ok(event)
        }

        unsafe fn destroy_event(&self, event: EventHandle) -> Outcome<()> {
            // SAFETY: see above.
            unsafe { call!(self.$library, $destroy_event(event)) }
        }

        unsafe fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Outcome<()> {
            // SAFETY: see above.
            unsafe { call!(self.$library, $record_event(event, stream)) }
        }

        unsafe fn synchronize_event(&self, event: EventHandle) -> Outcome<()> {
            // SAFETY: see above.
            unsafe { call!(self.$library, $synchronize_event(event)) }
        }

        unsafe fn query_event(&self, event: EventHandle) -> Outcome<bool> {
            // SAFETY: see above.
            match unsafe { call!(self.$library, $query_event(event)) } {
                Err(error) if error.code == NOT_READY => Ok(false),
                passed => passed.map(|()| true),
            }
        }

        unsafe fn wait_event(&self, event: EventHandle, stream: StreamHandle) -> Outcome<()> {
            // SAFETY: see above.
            unsafe { call!(self.$library, $wait_event(stream, event, 0)) }
        }

        unsafe fn launch_host(&self, function: HostFunction, data: *mut c_void, stream: StreamHandle) -> Outcome<()> {
            // SAFETY: see above.
            unsafe { call!(self.$library, $launch_host(stream, function, data)) }
        }

        fn load_module(&self, image: &[u8]) -> Outcome<ModuleHandle> {
            let mut module = ModuleHandle::NULL;
            // SAFETY: see above; the library reads the image's size from its ELF header.
            unsafe { call!(self.$library, $load_module(&raw mut module, image.as_ptr().cast())) }?;
            Ok(module)
        }

        unsafe fn unload_module(&self, module: ModuleHandle) -> Outcome<()> {
            // SAFETY: see above.
            unsafe { call!(self.$library, $unload_module(module)) }
        }

        unsafe fn function(&self, module: ModuleHandle, name: &CStr) -> Outcome<FunctionHandle> {
            let mut function = FunctionHandle::NULL;
            // SAFETY: see above.
            unsafe { call!(self.$library, $function(&raw mut function, module, name.as_ptr())) }?;
            Ok(function)
        }

        unsafe fn max_threads(&self, function: FunctionHandle) -> Outcome<u32> {
            let mut value = 0;
            let attribute = sys::FUNCTION_MAX_THREADS_PER_BLOCK;
            // SAFETY: see above.
            unsafe { call!(self.$library, $function_attribute(&raw mut value, attribute, function)) }?;
            Ok(value.max(0).unsigned_abs())
        }

        unsafe fn begin_capture(&self, stream: StreamHandle) -> Outcome<()> {
            // SAFETY: see above.
            unsafe { call!(self.$library, $begin_capture(stream, sys::CAPTURE_THREAD_LOCAL)) }
        }

        unsafe fn end_capture(&self, stream: StreamHandle) -> Outcome<GraphHandle> {
            let mut graph = GraphHandle::NULL;
            // SAFETY: see above.
            unsafe { call!(self.$library, $end_capture(stream, &raw mut graph)) }?;
            Ok(graph)
        }

        unsafe fn destroy_graph(&self, graph: GraphHandle) -> Outcome<()> {
            // SAFETY: see above.
            unsafe { call!(self.$library, $destroy_graph(graph)) }
        }

        unsafe fn destroy_graph_exec(&self, graph: GraphExecHandle) -> Outcome<()> {
            // SAFETY: see above.
            unsafe { call!(self.$library, $destroy_graph_exec(graph)) }
        }

        unsafe fn launch_graph(&self, graph: GraphExecHandle, stream: StreamHandle) -> Outcome<()> {
            // SAFETY: see above.
            unsafe { call!(self.$library, $launch_graph(graph, stream)) }
        }
    };
}
