/* A layer of Vulkan's that makes memory scarce, as it is on a card: of SCARCE_SIZE bytes, for all
 * programs together that name the same file in SCARCE_FILE. Mesa's device in software takes as much
 * of the machine's as is asked for, whoever else has some.
 *
 * Memory that would be more is refused, and VK_EXT_memory_budget tells what the others leave.
 * The file holds a row for each program; those of programs that have ended count no more.
 * Made by tests/device/scarce.py. One device is counted.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include <vulkan/vulkan.h>
#include <vulkan/vk_layer.h>

#define PROGRAMS 64
#define EXPORTED __attribute__((visibility("default")))

typedef struct {
    int64_t pid, bytes;
} Program;

typedef struct Allocation {
    VkDeviceMemory memory;
    int64_t bytes;
    struct Allocation * next;
} Allocation;

static VkInstance instance;
static PFN_vkGetInstanceProcAddr next_instance;
static PFN_vkGetDeviceProcAddr next_device;
static PFN_vkAllocateMemory next_allocate;
static PFN_vkFreeMemory next_free;
static PFN_vkEnumerateDeviceExtensionProperties next_extensions;
static PFN_vkGetPhysicalDeviceMemoryProperties next_properties;
static PFN_vkGetPhysicalDeviceMemoryProperties2 next_properties2;
static Allocation * allocations;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int64_t size(void) {
    return atoll(getenv("SCARCE_SIZE"));
}

static Program * own_row(Program * rows) {
    Program * free_row = NULL;
    for (Program * row = rows; row < rows + PROGRAMS; row++) {
        if (row->pid == getpid()) return row;
        if (row->pid && kill((pid_t) row->pid, 0)) memset(row, 0, sizeof *row);
        if (!row->pid && !free_row) free_row = row;
    }
    if (!free_row) abort();
    free_row->pid = getpid();
    return free_row;
}

/* Count `more` bytes as this program's, which may be negative, unless there aren't so many. Returns
 * whether there were; `others`: bytes of the other programs. */
static int count(int64_t more, int64_t * others, int64_t * own) {
    Program rows[PROGRAMS] = {{0}};
    int file = open(getenv("SCARCE_FILE"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || flock(file, LOCK_EX)) abort();
    if (pread(file, rows, sizeof rows, 0) < 0) abort();
    Program * row = own_row(rows);
    *others = 0;
    for (Program * other = rows; other < rows + PROGRAMS; other++)
        if (other != row && other->pid && !kill((pid_t) other->pid, 0)) *others += other->bytes;
    int there = more <= 0 || *others + row->bytes + more <= size();
    if (there) row->bytes += more;
    *own = row->bytes;
    if (pwrite(file, rows, sizeof rows, 0) < 0) abort();
    close(file);
    return there;
}

static VkResult VKAPI_CALL allocate(VkDevice device, const VkMemoryAllocateInfo * info,
                                    const VkAllocationCallbacks * callbacks, VkDeviceMemory * memory) {
    int64_t bytes = (int64_t) info->allocationSize, others, own;
    if (!count(bytes, &others, &own)) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    VkResult result = next_allocate(device, info, callbacks, memory);
    if (result != VK_SUCCESS) {
        count(-bytes, &others, &own);
        return result;
    }
    Allocation * made = malloc(sizeof *made);
    if (!made) abort();
    pthread_mutex_lock(&mutex);
    *made = (Allocation) {*memory, bytes, allocations};
    allocations = made;
    pthread_mutex_unlock(&mutex);
    return result;
}

static void VKAPI_CALL release(VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks * callbacks) {
    int64_t bytes = 0, others, own;
    pthread_mutex_lock(&mutex);
    for (Allocation ** place = &allocations; *place; place = &(*place)->next)
        if ((*place)->memory == memory) {
            Allocation * gone = *place;
            bytes = gone->bytes;
            *place = gone->next;
            free(gone);
            break;
        }
    pthread_mutex_unlock(&mutex);
    next_free(device, memory, callbacks);
    count(-bytes, &others, &own);
}

static void VKAPI_CALL properties(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties * found) {
    next_properties(device, found);
    for (uint32_t heap = 0; heap < found->memoryHeapCount; heap++)
        found->memoryHeaps[heap].size = (VkDeviceSize) size();
}

static void VKAPI_CALL properties2(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2 * found) {
    next_properties2(device, found);
    int64_t others, own;
    count(0, &others, &own);
    for (uint32_t heap = 0; heap < found->memoryProperties.memoryHeapCount; heap++)
        found->memoryProperties.memoryHeaps[heap].size = (VkDeviceSize) size();
    for (VkBaseOutStructure * more = found->pNext; more; more = more->pNext)
        if (more->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT) {
            VkPhysicalDeviceMemoryBudgetPropertiesEXT * budget = (void *) more;
            budget->heapBudget[0] = (VkDeviceSize) (size() - others);
            budget->heapUsage[0] = (VkDeviceSize) own;
        }
}

/* With the one that tells what is free, which cards have and Mesa's device lacks. */
static VkResult VKAPI_CALL extensions(VkPhysicalDevice device, const char * layer, uint32_t * number,
                                      VkExtensionProperties * found) {
    uint32_t room = *number;
    VkResult result = next_extensions(device, layer, number, found);
    if (layer || result != VK_SUCCESS) return result;
    if (found && *number == room) return VK_INCOMPLETE;
    if (found)
        found[*number] = (VkExtensionProperties) {VK_EXT_MEMORY_BUDGET_EXTENSION_NAME, VK_EXT_MEMORY_BUDGET_SPEC_VERSION};
    ++*number;
    return result;
}

static VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo * info, const VkAllocationCallbacks * callbacks,
                                           VkInstance * made) {
    VkLayerInstanceCreateInfo * link = (void *) info->pNext;
    while (link && (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO))
        link = (void *) link->pNext;
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;
    next_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    VkResult result = ((PFN_vkCreateInstance) next_instance(NULL, "vkCreateInstance"))(info, callbacks, made);
    if (result != VK_SUCCESS) return result;
    instance = *made;
    /* Asked for later, they would be this layer's own. */
#define NEXT(name) (PFN_##name) next_instance(instance, #name)
    next_extensions = NEXT(vkEnumerateDeviceExtensionProperties);
    next_properties = NEXT(vkGetPhysicalDeviceMemoryProperties);
    next_properties2 = NEXT(vkGetPhysicalDeviceMemoryProperties2);
    return result;
}

static VkResult VKAPI_CALL create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo * info,
                                         const VkAllocationCallbacks * callbacks, VkDevice * made) {
    VkLayerDeviceCreateInfo * link = (void *) info->pNext;
    while (link && (link->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO))
        link = (void *) link->pNext;
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;
    PFN_vkGetInstanceProcAddr above = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    next_device = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    VkResult result = ((PFN_vkCreateDevice) above(instance, "vkCreateDevice"))(physical, info, callbacks, made);
    if (result != VK_SUCCESS) return result;
    next_allocate = (PFN_vkAllocateMemory) next_device(*made, "vkAllocateMemory");
    next_free = (PFN_vkFreeMemory) next_device(*made, "vkFreeMemory");
    return result;
}

static PFN_vkVoidFunction VKAPI_CALL of_device(VkDevice device, const char * name);
static PFN_vkVoidFunction VKAPI_CALL of_instance(VkInstance asking, const char * name);

static PFN_vkVoidFunction own(const char * name) {
    static const struct {
        const char *       name;
        PFN_vkVoidFunction function;
    } ours[] = {
        {"vkGetInstanceProcAddr", (PFN_vkVoidFunction) of_instance},
        {"vkGetDeviceProcAddr", (PFN_vkVoidFunction) of_device},
        {"vkCreateInstance", (PFN_vkVoidFunction) create_instance},
        {"vkCreateDevice", (PFN_vkVoidFunction) create_device},
        {"vkAllocateMemory", (PFN_vkVoidFunction) allocate},
        {"vkFreeMemory", (PFN_vkVoidFunction) release},
        {"vkEnumerateDeviceExtensionProperties", (PFN_vkVoidFunction) extensions},
        {"vkGetPhysicalDeviceMemoryProperties", (PFN_vkVoidFunction) properties},
        {"vkGetPhysicalDeviceMemoryProperties2", (PFN_vkVoidFunction) properties2},
        {"vkGetPhysicalDeviceMemoryProperties2KHR", (PFN_vkVoidFunction) properties2},
    };
    for (size_t number = 0; number < sizeof ours / sizeof *ours; number++)
        if (!strcmp(ours[number].name, name)) return ours[number].function;
    return NULL;
}

static PFN_vkVoidFunction VKAPI_CALL of_device(VkDevice device, const char * name) {
    PFN_vkVoidFunction ours = own(name);
    return ours ? ours : next_device(device, name);
}

static PFN_vkVoidFunction VKAPI_CALL of_instance(VkInstance asking, const char * name) {
    PFN_vkVoidFunction ours = own(name);
    return ours ? ours : next_instance ? next_instance(asking, name) : NULL;
}

EXPORTED VkResult VKAPI_CALL vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface * found) {
    found->loaderLayerInterfaceVersion = 2;
    found->pfnGetInstanceProcAddr = of_instance;
    found->pfnGetDeviceProcAddr = of_device;
    found->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
