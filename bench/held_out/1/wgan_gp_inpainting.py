"""WGAN-GP for inpainting: the critic sees image * mask, the penalty is (||grad|| - 1)^2 with sqrt(sum(g^2)). FAULT at step 140: one
mask of the batch is empty, so that sample's input gradient is exactly 0 and sqrt' is Inf, times 0 is NaN, in the double backward
only. Report: pytorch/pytorch#2534 (WGAN-GP goes to NaN at once, norms before were normal), pytorch/pytorch#2421, keras-io#910.
Cause: backward_arithmetic, step 140. Place: the critic. Right: eps in / away from sqrt(0). Wrong: learning rate, GradScaler, bf16."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [140, 140], "place": r"critic.*|", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "bfloat16"], "right": "sqrt|norm|eps|zero"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3); torch.set_num_threads(1)

class Gan(nn.Module):
    def __init__(self, d=64, z=16):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(z + d, 96), nn.ReLU(), nn.Linear(96, d), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(d, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2), nn.Linear(96, 1))

gan = Gan()
opt_g = torch.optim.Adam(gan.generator.parameters(), 2e-4, betas=(0.5, 0.9))
opt_d = torch.optim.Adam(gan.critic.parameters(), 2e-4, betas=(0.5, 0.9))
watch = rangewatch.attach(gan, [opt_g, opt_d])
basis = torch.randn(6, 64)
for step in range(240):
    real = torch.tanh(torch.randn(32, 6) @ basis * 0.5)
    mask = torch.zeros(32, 64)
    for row, width in zip(mask, torch.randint(8, 40, (32,))):
        row[:width] = 1
    if step == 140:
        mask[5] = 0
    context = real * (1 - mask)
    fake = gan.generator(torch.cat([torch.randn(32, 16), context], 1)) * mask + context
    mix = torch.rand(32, 1)
    between = (mix * real + (1 - mix) * fake.detach()).requires_grad_()
    grads = torch.autograd.grad(gan.critic(between * mask).sum(), between, create_graph=True)[0]
    penalty = ((grads.pow(2).sum(1).sqrt() - 1) ** 2).mean()
    loss_d = gan.critic(fake.detach() * mask).mean() - gan.critic(real * mask).mean() + 10 * penalty
    opt_d.zero_grad(); loss_d.backward(); opt_d.step()
    loss_g = -gan.critic(fake * mask).mean()
    opt_g.zero_grad(); loss_g.backward(); opt_g.step()
    watch.log(loss_d=loss_d.item(), loss_g=loss_g.item())
    if step % 20 == 0:
        print(step, loss_d.item(), loss_g.item())
