"""A net of five layers in functional style (a dict of tensors, no modules) that foretells the tide from six harmonics. FAULT from the start: all weights are `torch.randn` without a
scale: with a width of 64 each layer makes the values some six times larger.
Without Rangewatch: loss 1.7e6 at step 0, 1.1e5 at step 60, 28000 at the end; the variance of the tide is 0.6 to 1.2.
Cause: weight (initialisation). Step: any. Right: init / scale / std. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["weight", "learning_rate", "forward_arithmetic", "(none)"], "step": [0, 200], "place": None, "rank": None,
          "right": "(?i)init|scale|\\bstd\\b|deviation|xavier|kaiming", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3019); torch.set_num_threads(1)
sizes = [12, 64, 64, 64, 64, 1]
net = nn.ParameterDict()
for k, (a, b) in enumerate(zip(sizes, sizes[1:])):
    net[f"w{k}"] = nn.Parameter(torch.randn(a, b))
    net[f"b{k}"] = nn.Parameter(torch.zeros(b))


def forward(x):
    for k in range(5):
        x = x @ net[f"w{k}"] + net[f"b{k}"]
        if k < 4:
            x = x.relu()
    return x


rates = torch.tensor([0.5059, 0.5236, 0.2625, 0.2434, 0.5307, 0.2603])
heights = torch.tensor([1.0, 0.46, 0.3, 0.25, 0.19, 0.1])
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    hour = 600 * torch.rand(128, 1)
    phase = hour * rates
    tide = (heights * torch.cos(phase)).sum(1, keepdim=True)
    tide = tide + 0.3 * tide ** 2
    loss = (forward(torch.cat((phase.sin(), phase.cos()), 1)) - tide).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "variance of the tide", tide.var().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
