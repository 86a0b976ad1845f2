/* Put before every C++ file of llama.cpp where it is built for Vulkan (scripts/install).
 *
 * llama.cpp asks Vulkan's validation layer for its advice on speed with VK_EXT_layer_settings, whose
 * structures came with version 1.3.272 of the headers; Debian 12 has 1.3.239. They are declared here
 * as the specification has them. vulkan.hpp itself is left to llama.cpp, which includes it with the
 * loader of functions that it wants.
 */
#ifdef ggml_vulkan_EXPORTS /* defined by CMake for the library ggml-vulkan alone */
#include <vulkan/vulkan_core.h>
#ifndef VK_EXT_layer_settings
#include <cstdint>
#include <vector>
namespace vk {
enum class LayerSettingTypeEXT : uint32_t { eBool32 = 0 };

struct LayerSettingEXT {
    const char *        pLayerName;
    const char *        pSettingName;
    LayerSettingTypeEXT type;
    uint32_t            valueCount;
    const void *        pValues;
};

struct LayerSettingsCreateInfoEXT {
    VkStructureType         sType = static_cast<VkStructureType>(1000496000);
    const void *            pNext = nullptr;
    uint32_t                settingCount;
    const LayerSettingEXT * pSettings;

    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> & settings)
        : settingCount(static_cast<uint32_t>(settings.size())), pSettings(settings.data()) {}
};
}  // namespace vk
#endif
#endif
