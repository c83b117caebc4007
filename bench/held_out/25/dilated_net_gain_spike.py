"""A dilated causal conv net that removes echo from sound. FAULT at step 140: the gain of the recorder leaps to 80 and comes back by a fifth at each step; the
gradients explode by thousands at 140 and decay within 20 steps with the gain.
Without Rangewatch: loss 0.36 to 0.0068 at step 139 (gradient norm 0.018), 72 at step 140 (norm 623), 95 at step 141 (norm 1511), 1.3 at step 150,
0.060 at step 160, 0.017 at the end.
Cause: data. Step: 140. Right: input / batch / data / clip. Wrong: GradScaler, attention mask, bfloat16."""
EXPECT = {"cause": ["data"], "step": [139, 142], "place": None, "rank": 0,
          "right": "(?i)input|batch|data|clip|outlier", "wrong": ["GradScaler", "attention mask", "bfloat16"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2521); torch.set_num_threads(1)


class Causal(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.pad, self.conv, self.gate = 2 * dilation, nn.Conv1d(width, width, 3, dilation=dilation), nn.Conv1d(width, width, 1)

    def forward(self, h):
        return h + self.gate(F.leaky_relu(self.conv(F.pad(h, (self.pad, 0))), 0.2))


net = nn.Sequential(nn.Conv1d(1, 32, 1), *(Causal(32, 2 ** k) for k in range(4)), nn.Conv1d(32, 1, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(210):
    dry = F.avg_pool1d(torch.randn(16, 1, 132), 5, 1)
    wet = dry.clone()
    wet[..., 7:] += 0.6 * dry[..., :-7]
    gain = 1.0 if step < 140 else 1.0 + 79.0 * 0.8 ** (step - 140)
    loss = F.mse_loss(net(gain * wet), gain * dry)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm().item()
    optimizer.step()
    if step % 20 == 0 or 138 < step < 144 or step in (150, 209):
        print(step, loss.item(), "gradient norm", norm, flush=True)
    handle.log(loss=loss.item())
handle.detach()
