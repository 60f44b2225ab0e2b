/* Included before every file that narrowcast._C is linked from, so that it loads on a glibc older than the one it is compiled with
   (NARROWCAST_MANYLINUX). These functions moved to libc.so in glibc 2.34 and have new versions there; the versions of before are there
   too. */
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlclose,dlclose@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
__asm__(".symver dlerror,dlerror@GLIBC_2.2.5");
__asm__(".symver pthread_once,pthread_once@GLIBC_2.2.5");

/* Of glibc 2.32: a process that says it has one thread spares std::shared_ptr its atomic operations. */
extern "C" {
__attribute__((weak, visibility("hidden"))) char __libc_single_threaded = 0;
}
